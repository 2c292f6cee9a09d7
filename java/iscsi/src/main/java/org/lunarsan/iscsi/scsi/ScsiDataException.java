package org.lunarsan.iscsi.scsi;

import java.io.IOException;

/**
 * A unit answered data that is too short or makes no sense.
 *
 * <p>Threads: immutable.
 */
public final class ScsiDataException extends IOException {
    private static final long serialVersionUID = 1;

    ScsiDataException(String what) {
        super(what);
    }
}
