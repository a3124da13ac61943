//! Backups, restores, a look at a database that changes nothing, and private files: for the commands of those who run the
//! program.

pub use crate::effects::{DeadJobs, SweepState};
pub use crate::postgres::inspect::{Address, OpenWrite, PostgresInspection, Replica, Server};
pub use crate::postgres::roles::Login;
pub use crate::private::{
    Exposure, exposure_of_file, exposure_of_folder, open as open_private, read as read_private,
    replace as replace_private,
};
pub use crate::sqlite::backup::take;
pub use crate::sqlite::ballast::free_bytes;
pub use crate::sqlite::deployment::{Deployment, ShardFile};
pub use crate::sqlite::inspect::{Beside, Inspection, Marked, Newest, sqlite_version};
pub use crate::sqlite::manifest::{Manifest, Piece, ServerKeyCopy, ShardCopy};
pub use crate::sqlite::open::create_private;
pub use crate::sqlite::restore::{Restored, UNFINISHED, restore};
pub use crate::sqlite::salvage::{Salvage, Salvaged, SalvagedTable, Way, finding};
pub use crate::sqlite::watch::{Step, Watch};
