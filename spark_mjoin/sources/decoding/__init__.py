"""What is in a file: parquet, csv, newline-delimited json and Arrow IPC decoded to batches in canonical types.

    File -> decode(schema, columns, start, end) -> record batches of the rows start..end-1 of the file

    file.py      a file to look into, and what a format has to know about it
    parquet.py, arrow.py, csv.py, json.py
    batches.py   what all of them do with the batches that Arrow gives

Every decoder obeys one contract. The rows of a file have a fixed order and are numbered from 0. `decode` gives those
of a row range, the columns asked for, in that order, in the types that `schema` has for them, in batches of at most
`BATCH_ROWS` rows. A column that the file lacks is NULL. No columns at all gives batches that only count. Decoding
looks at the bytes of the file and nothing else, so the same file gives the same batches. `count` is the number of
rows that `decode` would give. Whatever is wrong with a value is a `ColumnError`; whatever is wrong with the file is
an error of Arrow.

Columns, and fields of structs, are found by name, exactly or else without regard to case (json: exactly). A column of
a file may be narrower than the schema's, not of another kind: text in a file is not parsed into a BIGINT, except where
all is text (csv, json).

Text timestamps are ISO-8601. Without a zone they are UTC (TIMESTAMP) or must have none (TIMESTAMP_NTZ). Digits beyond
microseconds are cut.
"""
