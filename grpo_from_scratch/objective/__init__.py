"""The maths: tensors in, tensors out; no model, no text, no files."""
