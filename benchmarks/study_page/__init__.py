"""What docs/study.md shows of the record: `study_tables.py` puts it there."""
