"""What docs/study/ shows of the record: `study_tables.py` puts it there."""
