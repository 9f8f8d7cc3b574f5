-- One row. `last` is the newest number given out: jobs, points, lines and events share one increasing row of
-- numbers. Whoever writes takes the row first, so writers follow one another, and no number becomes visible
-- after a higher one: a reader that asks for what is above the last it saw misses nothing.
CREATE TABLE clock (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    last BIGINT NOT NULL
);
INSERT INTO clock (one, last) VALUES (1, 0);

CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    number BIGINT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    workload TEXT,
    request TEXT NOT NULL,
    idempotency_key TEXT UNIQUE,
    digest TEXT NOT NULL,
    state TEXT NOT NULL,
    -- Its place in the queue: lower goes first.
    place BIGINT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    started DOUBLE PRECISION,
    ended DOUBLE PRECISION,
    step BIGINT,
    steps BIGINT,
    rate DOUBLE PRECISION,
    eta_s DOUBLE PRECISION,
    error TEXT,
    waits_for TEXT,
    verdict TEXT,
    gpu TEXT,
    memory TEXT,
    phases TEXT,
    cancel_asked INTEGER NOT NULL DEFAULT 0,
    -- The lease: whose token this is may write, and counts `beat` up to show that it lives.
    token BIGINT NOT NULL DEFAULT 0,
    beat BIGINT NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    -- Times that it was lost since it last made a step.
    losses INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX jobs_by_state ON jobs (state, place);
CREATE INDEX jobs_by_workload ON jobs (workload, number);

CREATE TABLE attempts (
    job TEXT NOT NULL,
    number INTEGER NOT NULL,
    token BIGINT NOT NULL,
    engine TEXT NOT NULL,
    handle TEXT,
    created DOUBLE PRECISION NOT NULL,
    started DOUBLE PRECISION,
    ended DOUBLE PRECISION,
    outcome TEXT,
    error TEXT,
    first_step BIGINT,
    last_step BIGINT,
    -- How much of its log file is in `lines`: written with them, so that each line is there once.
    log_bytes BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (job, number)
);

CREATE TABLE points (
    job TEXT NOT NULL,
    name TEXT NOT NULL,
    step BIGINT NOT NULL,
    value DOUBLE PRECISION NOT NULL,
    t DOUBLE PRECISION NOT NULL,
    id BIGINT NOT NULL,
    PRIMARY KEY (job, name, step)
);
CREATE INDEX points_by_id ON points (id);
CREATE INDEX points_by_job ON points (job, id);

CREATE TABLE lines (
    id BIGINT PRIMARY KEY,
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    t DOUBLE PRECISION NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX lines_by_job ON lines (job, id);

CREATE TABLE events (
    id BIGINT PRIMARY KEY,
    job TEXT NOT NULL,
    t DOUBLE PRECISION NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX events_by_job ON events (job, id);
