#!/usr/bin/env python3
"""Writes the files in this folder; the same bytes with the same pyarrow (written with 26).

    pip install pyarrow numpy
    python3 testdata/make.py
"""
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
ROWS = 1_800
rng = np.random.default_rng(20261201)


def nulls(share):
    return rng.random(ROWS) < share


def flat(share):
    """Every flat type, with a share of nulls."""
    mask = lambda: nulls(share) if share else None
    integers = lambda kind: pa.array(rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, ROWS, dtype=kind), mask=mask())
    words = np.array(["", "a", "flag", "Überseetruhe", "a longer text, past sixteen bytes", "🚀"])
    texts = words[rng.integers(0, len(words), ROWS)]
    columns = {
        "bool": pa.array(rng.random(ROWS) < 0.5, mask=mask()),
        **{kind: integers(kind) for kind in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]},
        "float16": pa.array(rng.random(ROWS).astype(np.float16), mask=mask()),
        "float32": pa.array(rng.standard_normal(ROWS).astype(np.float32), mask=mask()),
        "float64": pa.array(rng.standard_normal(ROWS), mask=mask()),
        "date": pa.array(rng.integers(0, 20_000, ROWS).astype(np.int32), pa.date32(), mask=mask()),
        "time": pa.array(rng.integers(0, 86_400_000_000, ROWS), pa.time64("us"), mask=mask()),
        "stamp": pa.array(rng.integers(0, 2**60, ROWS), pa.timestamp("ns", "UTC"), mask=mask()),
        "decimal": pa.array([int(it) for it in rng.integers(-(10**9), 10**9, ROWS)], pa.decimal128(20, 3), mask=mask()),
        "string": pa.array(texts, pa.string(), mask=mask()),
        "binary": pa.array([it.encode() for it in texts], pa.binary(), mask=mask()),
        "fixed": pa.array([bytes(it) for it in rng.integers(0, 256, (ROWS, 5)).astype(np.uint8)], pa.binary(5), mask=mask()),
    }
    return pa.table(columns)


def write(name, table, **options):
    options = {"compression": "snappy", "store_schema": True, **options}
    pq.write_table(table, HERE / f"{name}.parquet", **options)


def main():
    for version in ("1.0", "2.0"):
        short = f"v{version[0]}"
        write(f"flat_{short}_snappy", flat(0.2), data_page_version=version, data_page_size=4096)
        write(f"flat_{short}_plain", flat(0.0), data_page_version=version, use_dictionary=False, compression="none")
    write("all_null", flat(1.0))
    # The dictionary overflows after some pages, so the chunk goes on in PLAIN.
    text = pa.table({"id": np.arange(ROWS), "text": [f"text number {it * 7919 % 100_003}" for it in range(ROWS)]})
    write("dictionary_fallback", text, dictionary_pagesize_limit=8192, data_page_size=2048)
    write("many_row_groups", text, row_group_size=50)
    write("page_index", text, write_page_index=True, data_page_size=2048)
    nested = pa.table({
        "id": np.arange(ROWS),
        "list": pa.array([None if it % 11 == 0 else list(range(it % 4)) for it in range(ROWS)], pa.list_(pa.int32())),
        "struct": pa.array([{"a": it, "b": None if it % 3 else str(it)} for it in range(ROWS)]),
    })
    write("nested", nested)
    for codec in ("zstd", "gzip", "brotli", "lz4"):
        write(f"codec_{codec}", text.slice(0, 500), compression=codec)
    delta = {"id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"}
    write("delta", text, use_dictionary=False, column_encoding=delta)
    write("empty", text.slice(0, 0))

    good = (HERE / "dictionary_fallback.parquet").read_bytes()
    (HERE / "broken_truncated.parquet").write_bytes(good[: len(good) // 2])
    # A byte of the first data page's body: Snappy's, so that it no longer decompresses.
    broken = bytearray(good)
    for at in range(600, 700):
        broken[at] ^= 0xFF
    (HERE / "broken_page.parquet").write_bytes(broken)


if __name__ == "__main__":
    main()
