"""Which heads of a pretrained Transformer need dot products: measure, replace, fine-tune, ship."""
