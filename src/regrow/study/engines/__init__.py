"""Where the steps of a study run: in this process, in others, on a ray cluster, under slurm."""
