"""What every other part stands on: dtypes, avals, pytrees, source locations, configuration."""
