"""Looking at what programs do: pictures of shardings, debugging."""
