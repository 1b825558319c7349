"""Several processes that compute together: finding one's place, joining, agreeing, and saying who failed."""
