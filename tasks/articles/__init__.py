"""Stage `articles`: Wikipedia's articles as plain text."""
