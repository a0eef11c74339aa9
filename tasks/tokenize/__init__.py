"""Stage `tokenize`: documents and queries become token ids in memory maps, once per tokenizer."""
