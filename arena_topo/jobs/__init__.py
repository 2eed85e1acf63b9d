"""What people do with jobs: submit, look, follow, wait, stop and delete."""
