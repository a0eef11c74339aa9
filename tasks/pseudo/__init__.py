"""Stage `pseudo`: training queries made from the documents alone, and kept if BM25 and the start encoder find their document."""
