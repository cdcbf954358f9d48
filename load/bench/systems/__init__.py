"""`livescale bench systems`: whole systems and baselines on one trace, in virtual time."""
