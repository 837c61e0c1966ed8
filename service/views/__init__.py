"""What a plan looks like: as lines, as a picture, as a page, as a trace."""
