"""Stage `base`: the encoder that training starts from, brought into the one folder form, and its tokenizer."""
