"""Mutations of text: bytes, lines and fields, JSON.

A mutation takes a `random.Random` and bytes. It returns other bytes and its own name.
"""

import copy
import json
import re

NUMBERS = (
    *("9" * 400, "-1", "0", "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1e-400", "1_000"),
    *(
        "99999999999999999999",
        "2147483648",
        "-9223372036854775809",
        "0x10",
        "٣",
        "１２",
        "²",
        "1.5",
    ),
)
JUNK = (
    *(b"\x00", b"\xff\xfe", b"\xc3(", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xef\xbb\xbf"),
    *("\u2028".encode(), "\x85".encode(), "\xa0".encode(), "\u3000".encode(), "\u200b".encode()),
    *(b"\x0b", b"\x0c", b"\x1c", b"\r", b"\r\n", b"\n", b"\n\n", b"\t", b"\t\t", b" ", b'"', b"'"),
    *(b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b"(", b")", b",", b":", b"|", b"#"),
    *(b"[MASK]", b"-DOCSTART- -X- O O\n", b"\x1b[31m", b"<script>alert(1)</script>", b"[red]x[/]"),
    *(b"=cmd|' /C calc'!A0", "😀".encode(), "e\u0301".encode() * 60),
)
FIELDS = (
    b"",
    b" ",
    b'""',
    b'"',
    b"nan",
    b"inf",
    b"-0",
    b"1e5",
    b"NULL",
    b"B-",
    b"x",
    b"2",
    b"=1+1",
)


def flip_bits(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def set_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 2, 4))):
        data[rng.randrange(len(data))] = rng.choice((0, 9, 10, 13, 32, 34, 44, 127, 128, 255))
    return data


def truncate(rng, data):
    return data[: rng.choice((rng.randrange(len(data)), len(data) - 1, len(data) // 2))]


def cut_beginning(rng, data):
    return data[rng.randrange(1, min(len(data), 40) + 1) :]


def delete_part(rng, data):
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice((1, 2, 8, 64, 512)) :]


def repeat_part(rng, data):
    at, size = rng.randrange(len(data)), rng.choice((1, 8, 64, 512))
    return data[:at] + data[at : at + size] * rng.choice((1, 3, 50)) + data[at:]


def overwrite_with_zeros(rng, data):
    at, size = rng.randrange(len(data)), rng.choice((8, 64))
    return data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]


def insert_junk(rng, data):
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(JUNK) + data[at:]


def change_number(rng, data):
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    at = rng.choice(found).span() if found else (0, 0)
    return data[: at[0]] + rng.choice(NUMBERS).encode() + data[at[1] :]


def nest(rng, data):
    at, mark = rng.randrange(len(data) + 1), rng.choice((b"[", b'{"a":', b"("))
    return data[:at] + mark * rng.choice((50, 2000, 100_000)) + data[at:]


def lengthen_a_line(rng, data):
    at, part = rng.randrange(len(data) + 1), rng.choice((b"a", b"a ", "é".encode(), b"1 ", b","))
    return data[:at] + part * rng.choice((1000, 140_000, 700_000)) + data[at:]


def append_zeros(rng, data):
    return data + bytes(rng.choice((1, 8, 4096)))


def repeat_all(rng, data):
    return data * rng.choice((2, 3))


def empty(rng, data):
    return rng.choice((b"", b"", b" ", b"\n", b"\r\n\r\n", b"\t", b"\xef\xbb\xbf", b"\x00"))


def encode_otherwise(rng, data):
    text = data.decode("utf-8", "replace")
    name = rng.choice(("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"))
    return text.replace("e", "é", 3).encode(name, "replace")


def end_lines_otherwise(rng, data):
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r")))


def edit_lines(rng, data):
    """Deletes, repeats, moves and joins lines."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 2, 5))):
        at, kind = rng.randrange(len(lines)), rng.randrange(5)
        if kind == 0 and len(lines) > 1:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[at])
        elif kind == 2:
            lines.insert(rng.randrange(len(lines)), lines.pop(at))
        elif kind == 3:
            lines.insert(at, rng.choice((b"", b" ", b"\t")))
        else:
            lines[at : at + 2] = [b"".join(lines[at : at + 2])]
    return b"\n".join(lines)


def edit_fields(rng, data):
    """Deletes, adds and changes fields of lines, separated by tabs, commas or spaces."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(lines))
        mark = next((m for m in (b"\t", b",") if m in lines[at]), b" ")
        parts, kind = lines[at].split(mark), rng.randrange(4)
        place = rng.randrange(len(parts))
        if kind == 0:
            del parts[place]
        elif kind == 1:
            parts.insert(place, rng.choice(FIELDS))
        elif kind == 2 and len(parts) > 1:
            other = rng.randrange(len(parts))
            parts[place], parts[other] = parts[other], parts[place]
        else:
            parts[place] = rng.choice(FIELDS)
        lines[at] = mark.join(parts)
    return b"\n".join(lines)


BINARY = (
    *(flip_bits, flip_bits, set_bytes, truncate, truncate, cut_beginning, delete_part, repeat_part),
    *(overwrite_with_zeros, append_zeros, repeat_all, empty, insert_junk),
)
TEXT = (
    *BINARY,
    *(insert_junk, insert_junk, change_number, change_number, nest, lengthen_a_line),
    *(encode_otherwise, end_lines_otherwise, edit_lines, edit_lines, edit_fields, edit_fields),
)


def one_of(mutations):
    """Returns a mutation that is one of several. Only `empty` changes an empty file."""

    def mutate(rng, data):
        mutation = rng.choice(mutations) if data else empty
        return bytes(mutation(rng, data)), mutation.__name__

    return mutate


binary, text = one_of(BINARY), one_of(TEXT)

# ---- JSON

_RAW = "@raw@"  # prefix of a string with backslashes that are escapes in the file
VALUES = (
    *(None, True, False, 0, -1, 1, 2, 1.5, -1.5, 1e308, float("nan"), float("inf"), 10**30, 2**31),
    *(2**63, "", " ", "x", "0", "1", "ABCD", f"{_RAW}\\ud800", f"{_RAW}\\u0000", [], {}, [[]]),
    *([None], ["x", 1], {"a": 1}, "<script>alert(1)</script>", "=1+1", "[red]", "../x", "é" * 1000),
)
OBJECT = {"class_name": "Lambda", "config": {}, "module": "keras.layers", "registered_name": None}


def paths_in(value, path=()):
    """Returns the paths of the values in a JSON object; long lists contribute only some."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from paths_in(value[key], (*path, key))
    elif isinstance(value, list):
        size = len(value)
        for i in range(size) if size <= 40 else (0, 1, size // 2, size - 1):
            yield from paths_in(value[i], (*path, i))


def change_value(rng, holder, key):
    holder[key] = copy.deepcopy(rng.choice(VALUES))


def remove_value(rng, holder, key):
    del holder[key]


def rename_key(rng, holder, key):
    name = rng.choice((f"{key}x", "", str(key).upper(), "__class__", "name", "dtype", "file"))
    if isinstance(holder, dict):
        holder[name] = holder.pop(key)
    else:
        holder.append(name)


def wrap_value(rng, holder, key):
    holder[key] = rng.choice(([holder[key]], {"a": holder[key]}, dict(OBJECT)))


def write_as_string(rng, holder, key):
    holder[key] = str(holder[key])


def shift_number(rng, holder, key):
    if isinstance(holder[key], int | float):
        holder[key] += rng.choice((1, -1, 0.5, 10, 2**20, -(2**40)))
    else:
        change_value(rng, holder, key)


def exchange_values(rng, holder, key):
    keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
    other = rng.choice(keys)
    holder[key], holder[other] = holder[other], holder[key]


def copy_value(rng, holder, key):
    keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
    holder[key] = json.loads(json.dumps(holder[rng.choice(keys)]))


def lengthen_value(rng, holder, key):
    if isinstance(holder[key], str | list):
        holder[key] = holder[key] * rng.choice((2, 100))
    else:
        holder[key] = [holder[key]] * 60


def nest_value(rng, holder, key):
    for _ in range(rng.choice((5, 60))):
        holder[key] = [holder[key]]


VALUE_MUTATIONS = (
    *(change_value, change_value, change_value, change_value, remove_value, remove_value),
    *(rename_key, wrap_value, write_as_string, shift_number, shift_number, exchange_values),
    *(copy_value, lengthen_value, nest_value),
)


def json_value(rng, value):
    """Changes some values of a JSON object; returns its text and the change."""
    value, name = json.loads(json.dumps(value)), "unchanged"
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = [path for path in paths_in(value) if path]
        if not places:
            break
        depth = rng.choice(sorted({len(path) for path in places}))  # not only the deepest lists
        *above, key = rng.choice([path for path in places if len(path) == depth])
        holder = value
        for step in above:
            holder = holder[step]
        mutation = rng.choice(VALUE_MUTATIONS)
        mutation(rng, holder, key)
        name = mutation.__name__
    found = json.dumps(value, ensure_ascii=False).replace(f"{_RAW}\\\\", "\\")
    chance = rng.random()
    if chance < 0.03:
        found, name = found.replace(":", ":" + "[" * rng.choice((900, 100_000)), 1), "nest_json"
    elif chance < 0.06:
        found, name = re.sub(r"\d+", lambda _: rng.choice(NUMBERS), found, count=1), "odd_number"
    elif chance < 0.09:
        found, name = re.sub(r'("[^"]*": ?[^,{}\[\]]+),', r"\1, \1,", found, count=1), "repeat_key"
    return found.encode("utf-8", "surrogatepass"), name


def json_file(rng, data):
    if rng.random() < 0.25:
        return text(rng, data)
    return json_value(rng, json.loads(data))


def json_lines(rng, data):
    if rng.random() < 0.4:
        return text(rng, data)
    lines = data.rstrip(b"\n").split(b"\n")
    at = rng.randrange(len(lines))
    lines[at], name = json_value(rng, json.loads(lines[at]))
    return b"\n".join(lines) + b"\n", name
