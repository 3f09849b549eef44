#!/usr/bin/env python3
"""Writes the files of testdata/pyarrow/ with pyarrow's own writer, which cuts pages, fills dictionaries and nests in
other ways than arrow-rs's:
    python3 -m venv target/venv && target/venv/bin/pip install pyarrow
    target/venv/bin/python testdata/make_pyarrow.py [FOLDER]
Made with pyarrow 26.0.1; values are the same in each run.
"""

import datetime
import decimal
import pathlib
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq


FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("pyarrow"))
ROWS = 100
random_ = random.Random(26)


def number(bits):
    """Small and large ones."""
    limit = 1 << random_.choice([3, 7, bits - 1])
    return random_.randrange(-limit, limit)


def text():
    words = ["", "a", "ß", "日本", "🚀", "common prefix and more", "common prefix", "x" * 70]
    return "".join(random_.choice(words) for _ in range(random_.randrange(3)))


def leaves():
    """Types with a maker of values each."""
    day = datetime.date(1970, 1, 1)
    moment = datetime.datetime(2001, 2, 3)
    return {
        "bool": (pa.bool_(), lambda: random_.random() < 0.5),
        "i8": (pa.int8(), lambda: number(8)),
        "u16": (pa.uint16(), lambda: abs(number(16))),
        "i32": (pa.int32(), lambda: number(32)),
        "i64": (pa.int64(), lambda: number(64)),
        "u64": (pa.uint64(), lambda: abs(number(64))),
        "f16": (pa.float16(), lambda: float(number(8))),
        "f32": (pa.float32(), lambda: float(number(20))),
        "f64": (pa.float64(), lambda: random_.choice([0.5, -0.0, 1e300, float("inf"), random_.random()])),
        "date": (pa.date32(), lambda: day + datetime.timedelta(days=number(14))),
        "time": (pa.time64("us"), lambda: datetime.time(random_.randrange(24), random_.randrange(60))),
        "stamp": (pa.timestamp("us", "UTC"), lambda: moment + datetime.timedelta(seconds=number(28))),
        "nanos": (pa.timestamp("ns"), lambda: abs(number(62))),
        "span": (pa.duration("ms"), lambda: number(40)),
        "dec9": (pa.decimal128(9, 2), lambda: decimal.Decimal(number(29)).scaleb(-2)),
        "dec18": (pa.decimal128(18, 3), lambda: decimal.Decimal(number(58)).scaleb(-3)),
        "dec38": (pa.decimal128(38, 5), lambda: decimal.Decimal(number(100)).scaleb(-5)),
        "dec76": (pa.decimal256(70, 1), lambda: decimal.Decimal(number(200)).scaleb(-1)),
        "text": (pa.string(), text),
        "large": (pa.large_string(), text),
        "view": (pa.string_view(), text),
        "bytes": (pa.binary(), lambda: random_.randbytes(random_.randrange(20))),
        "fixed": (pa.binary(5), lambda: random_.randbytes(5)),
        "uuid": (pa.binary(16), lambda: random_.randbytes(16)),
    }


def rows(make, nulls, count=ROWS):
    return [None if random_.random() < nulls else make() for _ in range(count)]


def flat(nulls=0.2, names=None, different=None):
    columns = {}
    for name, (type_, make) in leaves().items():
        if names is None or name in names:
            if different:
                pool = [make() for _ in range(different)]
                columns[name] = pa.array(rows(lambda: random_.choice(pool), nulls), type_)
            else:
                columns[name] = pa.array(rows(make, nulls), type_)
    return pa.table(columns)


def nested(nulls=0.2, longest=3):
    """Structs, lists of every kind and maps, with nulls and empties at every level."""

    def items(make):
        return lambda: rows(make, nulls, random_.randrange(longest + 1))

    def pair(make):
        return lambda: [(text() + str(at), it) for at, it in enumerate(items(make)())]

    def struct(**makes):
        return lambda: {key: None if random_.random() < nulls else make() for key, make in makes.items()}

    def i32():
        return number(32)

    point = pa.struct([("x", pa.int32()), ("name", pa.string())])
    deep = pa.struct([("tags", pa.list_(pa.string())), ("x", pa.int64())])
    columns = {
        "struct": (point, struct(x=i32, name=text)),
        "list": (pa.list_(pa.int32()), items(i32)),
        "texts": (pa.large_list(pa.string()), items(text)),
        "three": (pa.list_(pa.float64(), 3), lambda: [float(number(9)) for _ in range(3)]),
        "map": (pa.map_(pa.string(), pa.int64()), pair(i32)),
        "lists": (pa.list_(pa.list_(pa.int64())), items(items(i32))),
        "structs": (pa.list_(deep), items(struct(tags=items(text), x=i32))),
        "maps": (pa.list_(pa.map_(pa.string(), pa.list_(pa.bool_()))), items(pair(items(lambda: random_.random() < 0.5)))),
        "inner": (pa.struct([("p", point), ("l", pa.list_(point))]), struct(p=struct(x=i32, name=text), l=items(struct(x=i32, name=text)))),
    }
    return pa.table({name: pa.array(rows(make, nulls), type_) for name, (type_, make) in columns.items()})


def deepest(depth=32):
    """Structs and lists in turn."""
    type_, make = pa.int32(), lambda: number(32)
    for level in range(depth):
        inner = make
        if level % 4 == 0:
            type_, make = pa.list_(type_), lambda inner=inner: rows(inner, 0.1, random_.choice([0, 1, 1, 1, 2]))
        else:
            type_ = pa.struct([("f", type_)])
            make = lambda inner=inner: {"f": None if random_.random() < 0.02 else inner()}
    return pa.table({"deep": pa.array(rows(make, 0.1), type_)})


def write(name, table, **options):
    pq.write_table(table, FOLDER / f"{name}.parquet", **options)


# Without statistics, which would be most of such a file.
TINY = {"data_page_size": 64, "write_batch_size": 7, "write_statistics": False}


SOME = ["bool", "i32", "i64", "f64", "dec38", "text", "bytes", "fixed"]


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for version in ["1.0", "2.0"]:
        short = f"v{version[0]}"
        for codec in ["none", "snappy", "lz4", "gzip", "zstd", "brotli"]:
            write(f"flat_{short}_{codec}", flat(names=SOME), data_page_version=version, compression=codec, row_group_size=50)
            write(f"nested_{short}_{codec}", nested(), data_page_version=version, compression=codec)
        common = {"data_page_version": version, "compression": "none"}
        # Rows whose lists span pages, where the version lets them; and pages that start with rows, for the index.
        write(f"nested_{short}_tiny_pages", nested(longest=5), **common, **TINY)
        write(f"nested_{short}_tiny_pages_index", nested(longest=5), write_page_index=True, **common, **TINY)
        write(f"flat_{short}_tiny_pages", flat(different=4), **common, **TINY)
        write(f"flat_{short}_no_nulls", flat(nulls=0), **common)
        write(f"flat_{short}_all_null", flat(nulls=1), **common)
        write(f"nested_{short}_no_nulls", nested(nulls=0), **common)
        write(f"nested_{short}_all_null", nested(nulls=1), **common)
        write(f"nested_{short}_mostly_null", nested(nulls=0.7), use_dictionary=False, **common)
        write(f"deep_{short}", deepest(), **common)
        # A dictionary that is soon full, and PLAIN after it.
        write(f"fallback_{short}", flat(), dictionary_pagesize_limit=40, **common, **TINY)
        delta = {
            "bool": "RLE", "i8": "DELTA_BINARY_PACKED", "u16": "DELTA_BINARY_PACKED", "i32": "DELTA_BINARY_PACKED",
            "i64": "DELTA_BINARY_PACKED", "u64": "DELTA_BINARY_PACKED", "f32": "BYTE_STREAM_SPLIT",
            "f64": "BYTE_STREAM_SPLIT", "text": "DELTA_BYTE_ARRAY", "large": "DELTA_LENGTH_BYTE_ARRAY",
            "bytes": "DELTA_LENGTH_BYTE_ARRAY", "fixed": "BYTE_STREAM_SPLIT", "uuid": "DELTA_BYTE_ARRAY",
            "dec38": "BYTE_STREAM_SPLIT", "f16": "BYTE_STREAM_SPLIT",
        }
        for pages, options in [("", {}), ("_tiny_pages", TINY)]:
            write(f"delta_{short}{pages}", flat(names=delta), use_dictionary=False, column_encoding=delta, **common, **options)
            inner = {
                "list.list.element": "DELTA_BINARY_PACKED", "texts.list.element": "DELTA_BYTE_ARRAY",
                "three.list.element": "BYTE_STREAM_SPLIT", "map.key_value.key": "DELTA_BYTE_ARRAY",
                "map.key_value.value": "BYTE_STREAM_SPLIT", "structs.list.element.tags.list.element": "DELTA_LENGTH_BYTE_ARRAY",
                "struct.x": "DELTA_BINARY_PACKED", "struct.name": "DELTA_LENGTH_BYTE_ARRAY",
            }
            write(f"delta_nested_{short}{pages}", nested(), use_dictionary=False, column_encoding=inner, **common, **options)
    # What arrow's own types become without the hint, old timestamps, and dictionaries kept as such.
    write("no_hint", flat(), store_schema=False)
    write("int96", flat(names=["stamp", "i32"]), use_deprecated_int96_timestamps=True)
    write("decimals_as_integers", flat(names=["dec9", "dec18", "dec38"]), store_decimal_as_integer=True)
    dictionary = flat(names=["text"], different=5).column("text").combine_chunks().dictionary_encode()
    write("dictionary_type", pa.table({"words": dictionary, "lists": pa.array(rows(lambda: ["a", "b"], 0.3), pa.list_(pa.dictionary(pa.int32(), pa.string())))}))
    write("null_type", pa.table({"nothing": pa.nulls(ROWS), "some": pa.array(range(ROWS))}))
    write("no_rows", nested().slice(0, 0))
    write("row_groups", nested(), row_group_size=20)


if __name__ == "__main__":
    main()
