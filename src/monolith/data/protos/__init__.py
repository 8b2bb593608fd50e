"""Messages of samples and their configs, made from protos/data by scripts/update-protos."""
