package org.lunarsan.iscsi.scsi;

import java.io.IOException;

/**
 * Thrown when a unit answered with data that is too short or not valid.
 *
 * <p>Threads: immutable.
 */
public final class ScsiDataException extends IOException {
    private static final long serialVersionUID = 1;

    ScsiDataException(String what) {
        super(what);
    }
}
