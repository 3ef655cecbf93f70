"""Tables, JSON, figures and one HTML page from a run's journal."""
