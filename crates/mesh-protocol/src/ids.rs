//! UUIDs of the mesh.

use waybill_kernel::id_type;

id_type!(MeshId);
id_type!(
    /// A member stays the same one when its keys are rotated.
    MemberId
);
id_type!(InviteId);
id_type!(
    /// What the broker calls a message; its sender calls it by the client message id.
    MessageId
);
id_type!(
    /// Names a row of history. Where a reader stands in it is a sequence number instead.
    HistoryId
);
id_type!(DeliveryId);
id_type!(FileId);
