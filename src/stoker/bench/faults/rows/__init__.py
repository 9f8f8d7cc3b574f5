"""The rows of the campaign, by the part that they harm."""

from stoker.bench.faults.row import Row
from stoker.bench.faults.rows import data, doctor, feed, jobs, objects, records, stage, train, watch

ALL: tuple[Row, ...] = (
    *feed.ROWS,
    *objects.ROWS,
    *data.ROWS,
    *stage.ROWS,
    *watch.ROWS,
    *records.ROWS,
    *doctor.ROWS,
    *train.ROWS,
    *jobs.ROWS,
)
