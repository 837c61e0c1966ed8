"""Where answers, measurements, decisions and plans are kept: SQLite or PostgreSQL, migrations, checksums of rows, and
the text that rows hold for values."""
