"""The model: loading, heads, log-probs, embeddings, sampling."""
