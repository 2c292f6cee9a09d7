//! The identity of a disk, for a server that reports the same one.

use super::RemoteDisk;
use crate::commands::parse_designators;
use crate::{Error, ErrorKind};
use lunar_scsi::reported_identity::ReportedIdentity;

impl RemoteDisk {
    /// Reads the identity that the unit reports to its hosts. The identity of an open disk does not
    /// change: the disk does not use a unit with other designators, see [`RemoteDisk`].
    ///
    /// # Errors
    /// `Refused` if the unit reports no designator that identifies it · `Changed` if another unit
    /// than the opened one responds · the errors of the commands.
    pub async fn reported_identity(&self) -> Result<ReportedIdentity, Error> {
        let standard = self.unit.inquiry(0, 0).await?;
        let page = self.unit.vpd_page(0x83).await?;
        let serial_number = self.unit.vpd_page(0x80).await?;
        let (page, serial_number) = (page.as_deref(), serial_number.as_deref());
        let identity =
            ReportedIdentity::parse(&standard, page, serial_number).map_err(|error| {
                let what = format!("{} has no identity that can be passed on: {error}", self.name);
                Error::new(ErrorKind::Refused, what)
                    .hint("let the disk have an identity of its own")
            })?;
        self.fingerprint
            .check_designators(parse_designators(page.unwrap_or_default()), &self.name)?;
        Ok(identity)
    }
}
