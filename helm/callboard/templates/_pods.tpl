{{- define "callboard.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of a pod template: {root, component, pool, settings}. What changes the settings rolls the pods. */}}
{{- define "callboard.podMetadata" -}}
labels:
  {{- include "callboard.selector" . | nindent 2 }}
  {{- with .settings.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ include (print .root.Template.BasePath "/configmap.yaml") .root | sha256sum }}
  checksum/secret: {{ include (print .root.Template.BasePath "/secret.yaml") .root | sha256sum }}
  {{- with .settings.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Restricted Pod Security, for every pod of ours. */}}
{{- define "callboard.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  {{- range $key := list "runAsUser" "runAsGroup" "fsGroup" }}
  {{- $number := index $.Values.security $key }}
  {{- if not (kindIs "invalid" $number) }}
  {{ $key }}: {{ int64 $number }}
  {{- end }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "callboard.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* What every pod spec says of who it is: {root, serviceAccount}. */}}
{{- define "callboard.podIdentity" -}}
serviceAccountName: {{ .serviceAccount | default (include "callboard.serviceAccountName" .root) }}
automountServiceAccountToken: false
# Kubernetes would set CALLBOARD_* variables for Services of such names.
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{ include "callboard.podSecurity" .root }}
{{- end -}}

{{/* Where the pods of a Deployment go: {root, component, pool, settings}. */}}
{{- define "callboard.scheduling" -}}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $.settings $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- if kindIs "slice" .settings.topologySpreadConstraints }}
{{- with .settings.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- else if .root.Values.topologySpread.topologyKeys }}
topologySpreadConstraints:
  {{- range .root.Values.topologySpread.topologyKeys }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: {{ $.root.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "callboard.selector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end -}}

{{- define "callboard.resources" -}}
{{- with . -}}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What every container of ours has in common. */}}
{{- define "callboard.container" -}}
image: {{ include "callboard.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{ include "callboard.containerSecurity" . }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "callboard.volumes" -}}
volumes:
  - name: tmp
    emptyDir: {}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "callboard.envFrom" -}}
envFrom:
  - configMapRef:
      name: {{ include "callboard.fullname" . }}
{{- end -}}

{{/* Of worker, projector and scheduler. Liveness asks neither Redis nor PostgreSQL: a restart mends no outage. */}}
{{- define "callboard.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: probes}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: probes}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: probes}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{/* No pod goes before its successor is ready: a queue is never without a consumer. */}}
{{- define "callboard.strategy" -}}
strategy:
  type: RollingUpdate
  rollingUpdate:
    maxUnavailable: 0
    maxSurge: 1
{{- end -}}

{{/* Egress to DNS. Policies see the port of its pods, not of its Service: on OpenShift that is 5353. */}}
{{- define "callboard.dns" -}}
- ports:
    {{- range $port := list 53 5353 }}
    - {protocol: UDP, port: {{ $port }}}
    - {protocol: TCP, port: {{ $port }}}
    {{- end }}
{{- end -}}
