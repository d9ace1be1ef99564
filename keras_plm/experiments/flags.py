"""Settings as frozen dataclasses, and the command-line flags made from them."""

import argparse
import dataclasses
import difflib
import typing

from keras_plm.files.arguments import check_number, check_one_of, check_whole


def setting(default, help, models=(), **rules):  # noqa: A002
    """Creates a dataclass field with a default, the help of its flag and rules for its value.

    Args:
        default: Default value.
        help: Help of the flag, without the names of models.
        models: Models with this setting; `()` for all. The flag's help begins with them.
        rules: Rules for `check_settings`: `choices`, or the bounds of a number: `least` or
            `above`, and `most` or `below`.
    """
    metadata = {"help": help, "models": tuple(models), "rules": rules}
    return dataclasses.field(default=default, metadata=metadata)


def check_settings(settings):
    """Checks each field of a settings object against its rules.

    Raises:
        TypeError: If a value is not a number, or not a whole number in an `int` field.
        ValueError: If a value is out of its bounds, or not one of the field's choices.
    """
    for field in dataclasses.fields(settings):
        value, rules = getattr(settings, field.name), field.metadata.get("rules", {})
        if "choices" in rules:
            check_one_of(value, field.name, rules["choices"])
        elif field.type is int:
            check_whole(value, field.name, **rules)
        elif field.type is float:
            check_number(value, field.name, **rules)


def help_of(field):
    """Returns the help of a `setting`'s flag; it begins with the models of the setting."""
    models = ", ".join(field.metadata.get("models", ()))
    return (f"{models}: " if models else "") + field.metadata.get("help", "")


# The Keras policy of each precision; weights stay in float32.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def policy(precision):
    """Returns the Keras policy of a `--precision`.

    Raises:
        ValueError: If the precision is unknown.
    """
    if precision not in POLICIES:
        raise ValueError(
            f"`precision` must be 'float32', 'bfloat16' or 'float16'. Received: {precision!r}"
        )
    return POLICIES[precision]


def add_devices(parser):
    """Adds the flag `--devices`."""
    parser.add_argument(
        "--devices", default="1", metavar="N",
        help="train on N devices, or all; torch uses one per process of torchrun (default 1)",
    )  # fmt: skip


def devices(text):
    """Parses the value of `--devices`: a number, or `None` for all.

    Raises:
        ValueError: If it is neither "all" nor 1 or more.
    """
    if text == "all":
        return None
    if not text.isdigit() or not int(text):
        raise ValueError(f"`--devices` must be 1 or more, or all. Received: {text!r}")
    return int(text)


def add_flags(parser, cls, names=None):
    """Adds a flag for each field of a settings class, or only for the fields in `names`.

    Flags have no default: `from_flags` can then tell which were given.
    """
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if names is not None and field.name not in names:
            continue
        kind = hints[field.name]
        text = help_of(field).replace("%", "%%")
        if field.default not in (None, "", dataclasses.MISSING):
            text = f"{text} (default {field.default})"
        flag = "--" + field.name.replace("_", "-")
        options = {"help": text, "default": argparse.SUPPRESS}
        if kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            parser.add_argument(flag, type=kind, metavar=kind.__name__.upper(), **options)


def from_flags(cls, flags, **values):
    """Creates a settings object from parsed flags; `values` override them."""
    given = {f.name: getattr(flags, f.name) for f in dataclasses.fields(cls) if f.name in flags}
    return cls(**{**given, **values})


def named(table, name, kind):
    """Returns the row of a name; the error for an unknown name suggests a similar one."""
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"Unknown {kind} {name!r}.{guess} Known: {', '.join(table)}")
    return table[name]
