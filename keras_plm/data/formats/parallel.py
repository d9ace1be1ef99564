"""Reader of texts and their translations, line by line."""

import os

from keras_plm.tokenizers.text import numbered_lines


def read_parallel(
    source_path: str | os.PathLike, target_path: str | os.PathLike
) -> tuple[list[str], list[str]]:
    """Reads a text and its translation, line by line.

    Args:
        source_path, target_path: Two text files, plain or `.gz`, with equal numbers of lines.

    Returns:
        `(sources, targets)`: two lists of texts.

    Raises:
        ValueError: If the numbers of lines differ, or a line is empty, with file and line.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, target = Path(folder, "text.de"), Path(folder, "text.en")
    ...     sizes = source.write_text("ein Haus\\n"), target.write_text("a house\\n")
    ...     read_parallel(source, target)
    (['ein Haus'], ['a house'])
    """
    texts = []
    for path in (source_path, target_path):
        texts.append([])
        for number, line in numbered_lines(path):
            if not line.strip():
                raise ValueError(
                    f"{path}:{number}: Every line must hold a text: remove the line from both "
                    f"files. Received: {line!r}"
                )
            texts[-1].append(line.strip())
    sources, targets = texts
    if len(sources) != len(targets):
        raise ValueError(
            f"Line n of {target_path} must translate line n of {source_path}. "
            f"Received: {len(sources)} lines and {len(targets)} lines"
        )
    if not sources:
        raise ValueError(f"{source_path}: No text in this file. Received: an empty file")
    return sources, targets
