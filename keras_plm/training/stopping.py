"""Signals that ask a process to end: training stops after a whole step, other work at once."""

import contextlib
import signal
import threading

# Sent by Ctrl-C, by `kill` or a batch system, and by a closed terminal.
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end.

    Args:
        number: The signal.

    Attributes:
        exit_status: Exit status for the process: 128 plus the number of the signal.
    """

    def __init__(self, number=signal.SIGINT):
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


@contextlib.contextmanager
def handling_signals(handle):
    """Calls `handle(number)` for each signal to end, within a context.

    SIGTERM and SIGHUP that the process ignores, as under `nohup`, stay ignored. In another
    thread nothing changes: only the main thread gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in list(before.items()):
        if handler is None or (handler == signal.SIG_IGN and number != signal.SIGINT):
            del before[number]  # `None` is a handler that Python cannot restore
    try:
        for number in before:
            signal.signal(number, lambda number, _: handle(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_stopped(number):
    """Raises `Stopped`; for `handling_signals`."""
    raise Stopped(number)


class StopRequest:
    """A signal's request to end training after the current step; a second one ends it at once.

    Attributes:
        number: The first signal, or `None`.
    """

    def __init__(self):
        self.number = None

    @contextlib.contextmanager
    def listening(self):
        """Raises `Stopped` at the end of a context if a signal arrived within it."""

        def ask(number):
            if self.number is not None:
                raise Stopped(number)
            self.number = number

        with handling_signals(ask):
            yield
        if self.number is not None:
            raise Stopped(self.number)
