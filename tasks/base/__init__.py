"""Stage `base`: convert the encoder that training starts from to the one folder format, with its tokenizer."""
