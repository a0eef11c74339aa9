"""From a transformer's hidden states to one vector a text: masks, pooling, and rows without padding."""
