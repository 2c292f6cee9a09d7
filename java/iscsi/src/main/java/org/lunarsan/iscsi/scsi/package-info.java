/**
 * The SCSI commands that a block device needs, as bytes: SPC-4 and SBC-3.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.scsi.Cdb} writes Command Descriptor Blocks into 16 bytes that are there
 * already, such as {@link org.lunarsan.iscsi.connection.Command#cdb}.
 * {@link org.lunarsan.iscsi.scsi.Capacity}, {@link org.lunarsan.iscsi.scsi.Inquiry},
 * {@link org.lunarsan.iscsi.scsi.VitalPage}, {@link org.lunarsan.iscsi.scsi.CachingMode} and
 * {@link org.lunarsan.iscsi.scsi.ReportedLuns} read what comes back, and
 * {@link org.lunarsan.iscsi.scsi.Sense} reads why nothing did.
 *
 * <h2>Threads</h2>
 * Values are immutable, the rest has no state.
 *
 * <h2>Errors</h2>
 * Data that is too short or makes no sense is a {@link org.lunarsan.iscsi.scsi.ScsiDataException};
 * sense data that cannot be read is no sense, and says so.
 */
package org.lunarsan.iscsi.scsi;
