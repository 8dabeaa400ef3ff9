"""A stranger to the service: loads and measures it. Knows URLs and proto/, imports nothing of models/ or service/."""
