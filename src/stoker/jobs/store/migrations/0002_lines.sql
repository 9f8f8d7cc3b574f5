-- Two lines wait in the queue, for cards and for slots: the first of each is looked for by this. Requests were kept
-- as JSON without blanks, in which a number of cards has this one form.
ALTER TABLE jobs ADD COLUMN needs_card INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET needs_card = 1 WHERE request NOT LIKE '%"gpus":0,%';
CREATE INDEX jobs_by_line ON jobs (state, needs_card, place);
