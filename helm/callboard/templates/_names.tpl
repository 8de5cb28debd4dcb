{{/* 30 characters at most, so that names and labels made of it keep within 63: a longer one is cut and told apart by its hash. */}}
{{- define "callboard.fullname" -}}
{{- $name := .Values.fullnameOverride | default (contains "callboard" .Release.Name | ternary .Release.Name (printf "%s-callboard" .Release.Name)) -}}
{{- if gt (len $name) 30 -}}
{{- printf "%s-%s" ($name | trunc 21 | trimSuffix "-") ($name | sha256sum | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* What a Service or Deployment selects by. Never changes between releases: a Deployment's selector can't. */}}
{{- define "callboard.selector" -}}
app.kubernetes.io/name: callboard
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
callboard/pool: {{ . }}
{{- end }}
{{- end -}}

{{- define "callboard.labels" -}}
{{ include "callboard.selector" . }}
app.kubernetes.io/part-of: callboard
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The metadata of an object: {root, name, component, pool, labels}. */}}
{{- define "callboard.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "callboard.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "callboard.serviceAccountName" -}}
{{- $own := .Values.serviceAccount.create | ternary (include "callboard.fullname" .) "default" -}}
{{- .Values.serviceAccount.name | default $own -}}
{{- end -}}
