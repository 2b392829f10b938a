"""The steps of the main job. Each reads a model or a checkpoint folder, does one thing and leaves a record."""
