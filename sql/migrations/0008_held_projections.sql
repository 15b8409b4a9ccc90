-- A projection that an event holds back says so to whoever asks any process.

ALTER TABLE tracking ADD COLUMN held text;
ALTER TABLE rebuild.tracking ADD COLUMN held text;
