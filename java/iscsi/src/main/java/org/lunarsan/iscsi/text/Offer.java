package org.lunarsan.iscsi.text;

import java.util.List;

/**
 * Values that one side proposes, and the bounds within which it accepts. Both roles use it. RFC
 * 7143 §13. Numbers outside of a key's range are clamped to it.
 *
 * <p>Threads: immutable.
 *
 * @param headerDigest HeaderDigest values in order of preference
 * @param dataDigest DataDigest values in order of preference
 * @param maxConnections MaxConnections, at most
 * @param initialR2t InitialR2T wanted
 * @param immediateData ImmediateData wanted
 * @param maxRecvDataSegmentBytes MaxRecvDataSegmentLength declared by us
 * @param maxBurstBytes MaxBurstLength, at most
 * @param firstBurstBytes FirstBurstLength, at most
 * @param timeToWaitSeconds DefaultTime2Wait
 * @param timeToRetainSeconds DefaultTime2Retain
 * @param maxOutstandingR2t MaxOutstandingR2T, at most
 * @param dataPduInOrder DataPDUInOrder wanted
 * @param dataSequenceInOrder DataSequenceInOrder wanted
 * @param errorRecoveryLevel ErrorRecoveryLevel, at most
 * @param taskReporting TaskReporting values in order of preference
 * @param protocolLevel iSCSIProtocolLevel, at most
 */
public record Offer(List<Digest> headerDigest, List<Digest> dataDigest, int maxConnections,
        boolean initialR2t, boolean immediateData, int maxRecvDataSegmentBytes, int maxBurstBytes,
        int firstBurstBytes, int timeToWaitSeconds, int timeToRetainSeconds, int maxOutstandingR2t,
        boolean dataPduInOrder, boolean dataSequenceInOrder, int errorRecoveryLevel,
        List<TaskReporting> taskReporting, int protocolLevel) {
    /** The iSCSIProtocolLevel of RFC 7143, which applies if none is named. RFC 7143 §13.24. */
    public static final int PROTOCOL_LEVEL_RFC_7143 = 1;

    /**
     * The iSCSIProtocolLevel of RFC 7144, the highest that this implementation supports. RFC 7144
     * §7.1.1.
     */
    public static final int PROTOCOL_LEVEL_MAX = 2;

    /**
     * Copies the lists.
     */
    public Offer {
        headerDigest = List.copyOf(headerDigest);
        dataDigest = List.copyOf(dataDigest);
        taskReporting = List.copyOf(taskReporting);
    }

    /**
     * Default offer of a target of this project.
     *
     * @return the offer
     */
    public static Offer target() {
        return new Builder().build();
    }

    /**
     * Default proposal of an initiator of this project: as the target's, with digests left to the
     * configuration.
     *
     * @return the offer
     */
    public static Offer initiator() {
        return new Builder().headerDigest(List.of(Digest.NONE)).dataDigest(List.of(Digest.NONE))
                .maxConnections(1).build();
    }

    /**
     * Returns the offer without the keys that RFC 3720 does not define, TaskReporting and
     * iSCSIProtocolLevel: some old targets close the connection over them.
     *
     * @return the offer
     */
    public Offer withoutNewerKeys() {
        return toBuilder().taskReporting(List.of(TaskReporting.RFC3720))
                .protocolLevel(PROTOCOL_LEVEL_RFC_7143).build();
    }

    /**
     * Returns a builder that holds the values of this offer.
     *
     * @return a new builder
     */
    public Builder toBuilder() {
        Builder builder = new Builder();
        builder.headerDigest = headerDigest;
        builder.dataDigest = dataDigest;
        builder.maxConnections = maxConnections;
        builder.initialR2t = initialR2t;
        builder.immediateData = immediateData;
        builder.maxRecvDataSegmentBytes = maxRecvDataSegmentBytes;
        builder.maxBurstBytes = maxBurstBytes;
        builder.firstBurstBytes = firstBurstBytes;
        builder.timeToWaitSeconds = timeToWaitSeconds;
        builder.timeToRetainSeconds = timeToRetainSeconds;
        builder.maxOutstandingR2t = maxOutstandingR2t;
        builder.dataPduInOrder = dataPduInOrder;
        builder.dataSequenceInOrder = dataSequenceInOrder;
        builder.errorRecoveryLevel = errorRecoveryLevel;
        builder.taskReporting = taskReporting;
        builder.protocolLevel = protocolLevel;
        return builder;
    }

    /**
     * Builds an {@link Offer}; starts with the values of {@link Offer#target}.
     *
     * <p>Threads: for one thread.
     */
    public static final class Builder {
        private List<Digest> headerDigest = List.of(Digest.NONE, Digest.CRC32C);
        private List<Digest> dataDigest = List.of(Digest.NONE, Digest.CRC32C);
        private int maxConnections = 8;
        private boolean initialR2t = false;
        private boolean immediateData = true;
        private int maxRecvDataSegmentBytes = 262_144;
        private int maxBurstBytes = 1 << 20;
        private int firstBurstBytes = 262_144;
        private int timeToWaitSeconds = 2;
        private int timeToRetainSeconds = 20;
        private int maxOutstandingR2t = 8;
        private boolean dataPduInOrder = true;
        private boolean dataSequenceInOrder = true;
        private int errorRecoveryLevel = 0;
        private List<TaskReporting> taskReporting = List.of(
                TaskReporting.FAST_ABORT, TaskReporting.RESPONSE_FENCE, TaskReporting.RFC3720);
        private int protocolLevel = PROTOCOL_LEVEL_MAX;

        /** Creates a builder with the values of {@link Offer#target}. */
        public Builder() {
        }

        /**
         * HeaderDigest values in order of preference.
         *
         * @param value the value
         * @return this
         */
        public Builder headerDigest(List<Digest> value) {
            headerDigest = value;
            return this;
        }

        /**
         * DataDigest values in order of preference.
         *
         * @param value the value
         * @return this
         */
        public Builder dataDigest(List<Digest> value) {
            dataDigest = value;
            return this;
        }

        /**
         * MaxConnections, at most.
         *
         * @param value the value
         * @return this
         */
        public Builder maxConnections(int value) {
            maxConnections = value;
            return this;
        }

        /**
         * InitialR2T wanted.
         *
         * @param value the value
         * @return this
         */
        public Builder initialR2t(boolean value) {
            initialR2t = value;
            return this;
        }

        /**
         * ImmediateData wanted.
         *
         * @param value the value
         * @return this
         */
        public Builder immediateData(boolean value) {
            immediateData = value;
            return this;
        }

        /**
         * MaxRecvDataSegmentLength declared by us.
         *
         * @param value the value
         * @return this
         */
        public Builder maxRecvDataSegmentBytes(int value) {
            maxRecvDataSegmentBytes = value;
            return this;
        }

        /**
         * MaxBurstLength, at most.
         *
         * @param value the value
         * @return this
         */
        public Builder maxBurstBytes(int value) {
            maxBurstBytes = value;
            return this;
        }

        /**
         * FirstBurstLength, at most.
         *
         * @param value the value
         * @return this
         */
        public Builder firstBurstBytes(int value) {
            firstBurstBytes = value;
            return this;
        }

        /**
         * DefaultTime2Wait.
         *
         * @param value the value
         * @return this
         */
        public Builder timeToWaitSeconds(int value) {
            timeToWaitSeconds = value;
            return this;
        }

        /**
         * DefaultTime2Retain.
         *
         * @param value the value
         * @return this
         */
        public Builder timeToRetainSeconds(int value) {
            timeToRetainSeconds = value;
            return this;
        }

        /**
         * MaxOutstandingR2T, at most.
         *
         * @param value the value
         * @return this
         */
        public Builder maxOutstandingR2t(int value) {
            maxOutstandingR2t = value;
            return this;
        }

        /**
         * DataPDUInOrder wanted.
         *
         * @param value the value
         * @return this
         */
        public Builder dataPduInOrder(boolean value) {
            dataPduInOrder = value;
            return this;
        }

        /**
         * DataSequenceInOrder wanted.
         *
         * @param value the value
         * @return this
         */
        public Builder dataSequenceInOrder(boolean value) {
            dataSequenceInOrder = value;
            return this;
        }

        /**
         * ErrorRecoveryLevel, at most.
         *
         * @param value the value
         * @return this
         */
        public Builder errorRecoveryLevel(int value) {
            errorRecoveryLevel = value;
            return this;
        }

        /**
         * TaskReporting values in order of preference.
         *
         * @param value the value
         * @return this
         */
        public Builder taskReporting(List<TaskReporting> value) {
            taskReporting = value;
            return this;
        }

        /**
         * iSCSIProtocolLevel, at most.
         *
         * @param value the value
         * @return this
         */
        public Builder protocolLevel(int value) {
            protocolLevel = value;
            return this;
        }

        /**
         * Builds the offer.
         *
         * @return an offer with the values set so far
         */
        public Offer build() {
            return new Offer(headerDigest, dataDigest, maxConnections, initialR2t, immediateData,
                    maxRecvDataSegmentBytes, maxBurstBytes, firstBurstBytes, timeToWaitSeconds,
                    timeToRetainSeconds, maxOutstandingR2t, dataPduInOrder, dataSequenceInOrder,
                    errorRecoveryLevel, taskReporting, protocolLevel);
        }
    }
}
