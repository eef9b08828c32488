"""What a run can train: each file says its modules, losses, test and sections."""
