/**
 * The SCSI commands that a block device needs, as bytes: SPC-4 and SBC-3.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.scsi.Cdb} encodes Command Descriptor Blocks into 16 bytes of the
 * caller, such as {@link org.lunarsan.iscsi.connection.Command#cdb}.
 * {@link org.lunarsan.iscsi.scsi.Capacity}, {@link org.lunarsan.iscsi.scsi.Inquiry},
 * {@link org.lunarsan.iscsi.scsi.VitalPage}, {@link org.lunarsan.iscsi.scsi.CachingMode} and
 * {@link org.lunarsan.iscsi.scsi.ReportedLuns} decode the answers, and
 * {@link org.lunarsan.iscsi.scsi.Sense} the reason of a failure.
 *
 * <h2>Threads</h2>
 * Values are immutable, the rest has no state.
 *
 * <h2>Errors</h2>
 * Data that is too short or not valid causes a {@link org.lunarsan.iscsi.scsi.ScsiDataException};
 * unreadable sense data is decoded as such.
 */
package org.lunarsan.iscsi.scsi;
