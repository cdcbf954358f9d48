"""`livescale bench pipeline`: execution pipelines over instances that are still loading."""
