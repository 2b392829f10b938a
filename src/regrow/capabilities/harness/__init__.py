"""lm-evaluation-harness both ways: its tasks with regrow's models and speed, regrow's checkpoints from its command."""
