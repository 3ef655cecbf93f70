"""Loss and step-time prediction: numeric functions of what was observed so far."""
