"""What stands behind a learner: what it learns, and how it goes through its samples."""
