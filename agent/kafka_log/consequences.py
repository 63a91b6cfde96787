"""What a broker and its readers do about each fault, one sentence each, as read in Kafka's sources.

Read in kafka.log.{Log,LogSegment,OffsetIndex,TimeIndex} of 0.9.0.1 and 0.11.0.0, in LogSegment and OffsetIndex of
every line from 0.10 to 2.3, and in kafka.log.LogLoader and org.apache.kafka.storage.internals.log.LogSegment of 3.9.0.
"""

BATCH_WENT_BACK = (
    "Readers that come from before skip the offsets they have already had; a broker that rebuilds this segment's index "
    "and makes an entry here fails with InvalidOffsetException (KAFKA-3919; up to 1.x it indexes first offsets, from "
    "2.0 on last offsets): recovering after an unclean stop it empties this segment and deletes those behind it, and "
    "with an index file missing or corrupt it does not start."
)
INNER_WENT_BACK = (
    "No broker notices: recovery and the index look at a batch's first or last offset only; readers that come from "
    "before skip the records whose offsets they have already had."
)
BATCH_CORRUPT = (
    "Recovering this segment after an unclean stop, a broker cuts the log off at this byte and deletes the segments "
    "behind it (LogSegment.recover); until then it serves the batch: consumers fail on it with CorruptRecordException "
    "unless check.crcs is false, and followers cannot append it."
)
INNER_CORRUPT = (
    "Brokers keep it, for they check the outer checksum only; consumers fail on the inner message with "
    "CorruptRecordException unless check.crcs is false."
)
UNDECODABLE = (
    "Brokers keep and replicate it, for recovery checks only the checksum, which holds; consumers and the log cleaner "
    "fail where they have to read its records."
)
NOT_BATCHES = (
    "Readers that come from before fail or stop at this byte; recovering this segment after an unclean stop, a broker "
    "cuts the log off here and deletes the segments behind it (LogSegment.recover), whole batches behind it included."
)
TORN = (
    "At its next start after an unclean stop the broker cuts the log off here (LogSegment.recover) and, as a follower, "
    "fetches the rest from its leader again; what no other replica holds is lost. Nothing of it is served before."
)
OUTSIDE = (
    "A fetch goes to the segment with the greatest base offset not above the offset wanted, so these records are not "
    "found by their offsets; an index cannot hold them: from 2.0 on a broker that loads more than 2147483647 offsets "
    "above the base splits the segment (KAFKA-6264), before it wrote wrong index entries."
)
INDEX = (
    "A broker trusts its index after a clean stop: a fetch that starts from this entry reads at the wrong byte and "
    "fails or misses records; delete the index file while the broker is stopped, and it is rebuilt at the next start."
)
TIME_INDEX = (
    "A broker trusts its time index after a clean stop: offsets asked for by time, and deletion by age, can be wrong; "
    "delete the index file while the broker is stopped, and it is rebuilt at the next start."
)
