"""Who is let in, who goes next, what runs together. Knows no model and no protocol."""
