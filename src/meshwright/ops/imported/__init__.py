"""What imported programs write before a mesh has been chosen, or that has no op here."""
