"""Stage `pseudo`: training queries made from the documents alone, kept where BM25 and the start encoder find their source."""
